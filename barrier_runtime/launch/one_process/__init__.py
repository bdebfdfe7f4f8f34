"""Parts of a job whose coordinator and slots share a process with the program."""
