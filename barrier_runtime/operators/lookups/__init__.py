"""`Stream.lookup`: adds columns from another system while the stream goes on."""
