"""Step hooks to use and to copy from: a calculator, and retrieval from a small corpus. docs/step-hooks.md."""
