"""Builder plug-ins: which traces of a session's token tree are trained."""
