"""Integrations into other libraries: extras, which nothing else imports."""
