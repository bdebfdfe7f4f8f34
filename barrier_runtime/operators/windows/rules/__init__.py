"""What triggers do to windows: when they emit results, beside the one when they are over."""
