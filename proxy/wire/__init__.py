"""What requests look like, a module for each dialect that needs one."""
