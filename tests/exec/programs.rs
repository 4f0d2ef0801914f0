//! Programs that people run, as Debian ships them. (Written next.)
