"""The demo's pipeline as a Spark user writes it without merganser: `day.py` is the program.

It runs in the environment of its contender, so of this project it imports nothing but this package.
"""
