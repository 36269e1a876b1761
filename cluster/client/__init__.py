"""Talking to a Banyan endpoint over HTTP."""
