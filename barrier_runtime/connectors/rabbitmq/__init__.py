"""RabbitMQ queues."""
