"""A user's function of the rows of a checkpoint, called by the program that started the job."""
