"""The ledger: implementations of `sshop.ports.Ledger`. Nothing outside this room names a database driver."""
