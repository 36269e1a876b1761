"""The cluster on a virtual clock: real gate, search runner, clamp and autoscaling, simulated engines.

``__main__`` has the commands, ``cluster`` the simulation itself, ``batch_curves`` and ``calls`` what it is calibrated
with.
"""
