"""What a program asks of its running job, and waits for: savepoints, another number of slots, another program."""
