"""Sink for tables of MySQL and MariaDB."""
