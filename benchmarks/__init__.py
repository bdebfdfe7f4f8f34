"""Scripts that measure what the README claims.

README.md in this folder has the commands, figures.md the figures and the ideas that were tried.
"""
