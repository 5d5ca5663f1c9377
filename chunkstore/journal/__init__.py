"""The journal, which orders concurrent writers of refs and gc runs."""
