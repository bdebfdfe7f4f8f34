"""Windows that hold their rows until they are over, and functions of whole windows."""
