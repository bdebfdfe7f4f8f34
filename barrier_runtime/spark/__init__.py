"""Everything that touches PySpark. Nothing outside this folder imports it, and this folder only when a job starts."""
