"""All code that uses PySpark. Other code imports this folder only when a job starts."""
