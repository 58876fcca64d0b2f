"""The steps of a program by how closely they were measured (strata), and estimates of
all steps from those that were measured closely. Nothing outside of this folder, but for
what fills the strata, knows of them: `program.program_profile` makes a profile."""
