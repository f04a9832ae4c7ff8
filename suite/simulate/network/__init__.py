"""Network models: seconds of messages, collectives and row exchanges on a modelled machine."""
