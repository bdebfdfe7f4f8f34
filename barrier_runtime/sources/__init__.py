"""Where streams begin: splits with positions that can be sought. One file per kind of source."""
