"""Time from a clone to the first answer, for the committed tree beside another commit: set-up, starts with and without
compiled code, and a replica that is added.

Each side has a checkout and a ``.venv`` of its own, made by that checkout's ``make setup``. The caches of a side's
applications are in a directory that belongs to the side and the condition.
"""
