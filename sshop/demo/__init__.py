"""A stage for `sshop demo`: an SSH server and a folder for everything. Nothing of the product is named here."""
