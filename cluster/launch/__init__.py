"""Runs an application in the foreground of this machine, in the environment that Ray's processes need."""
