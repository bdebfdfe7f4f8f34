"""Processes that slots run in: started, replaced and ended by Spark or by this program."""
