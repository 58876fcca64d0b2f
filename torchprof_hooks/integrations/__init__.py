"""What this package gives other libraries: extras, which nothing else imports."""
