"""An application in the foreground of this machine, and the environment that Ray's processes need."""
