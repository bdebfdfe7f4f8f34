"""A user's function of the rows of one checkpoint, called by the program that started the job."""
