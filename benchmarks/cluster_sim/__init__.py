"""A simulated cluster on a virtual clock: real admission, search runner, clamp and autoscaling; simulated engines.

``__main__`` has the commands and ``cluster`` the simulation; ``batch_curves`` and ``calls`` measure what it is
calibrated with.
"""
