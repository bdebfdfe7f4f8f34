"""What a job tells the outside of itself."""
