"""The command line: parse, call, print. What a command means is decided elsewhere."""
