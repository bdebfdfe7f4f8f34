"""Windows whose rows are held until they are over, and functions of whole windows."""
