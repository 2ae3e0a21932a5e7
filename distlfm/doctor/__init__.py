"""What `distlfm doctor` runs, each in a process of its own: one question about this machine a file.

A probe is started as `python -m distlfm.doctor.<name>`; see `answer` for how it replies.
"""
