"""Rules of triggers: when windows emit results besides their last."""
