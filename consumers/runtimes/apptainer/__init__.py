"""The runtime `apptainer`: sessions in containers of Apptainer, without a daemon and without privileges."""
