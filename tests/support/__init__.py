"""What tests stand on: a real sshd, a faulty line, a counter of effects, a killer at every system call."""
