-- Writes may run under a role of their caller, which has no right on the naming (docs/decisions/078).
ALTER FUNCTION fencing.check_table_naming_v1 SECURITY DEFINER;
