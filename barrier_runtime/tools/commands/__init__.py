"""The commands of `barrier-runtime`, each as the arguments it takes and a call of what does it."""
