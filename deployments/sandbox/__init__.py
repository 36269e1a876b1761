"""Programs that a model wrote, run apart from everything else: no file, network, environment or clock, and limits for
time, memory and output."""

from deployments.sandbox.sandbox import End, Limits, Run, Sandbox, SandboxBusy, Session

__all__ = ["End", "Limits", "Run", "Sandbox", "SandboxBusy", "Session"]
