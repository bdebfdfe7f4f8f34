"""All code that uses PySpark, imported only when a job starts."""
