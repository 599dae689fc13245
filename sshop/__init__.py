"""sshop: run commands on hosts over SSH with at most one effect for each intended action."""

__version__ = "0.1.0"
