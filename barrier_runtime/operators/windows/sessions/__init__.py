"""Sessions: windows whose ends depend on their rows."""
