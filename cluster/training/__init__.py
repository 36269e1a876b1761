"""Trains a process reward model on solved problems: `banyan train-prm`."""
