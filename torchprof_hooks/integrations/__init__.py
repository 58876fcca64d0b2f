"""Integrations into other libraries: extras, which the rest does not import."""
