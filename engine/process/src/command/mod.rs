//! One command as a task.
