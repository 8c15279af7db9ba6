//! The environment that children get: the variables of the program, byte for byte, with the changes of a spawn.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char};

use crate::guardian::{ROLE, RUN, TOKEN};

/// The environment of the program when the guardian started, without what made it the guardian.
pub(super) struct BaseEnv {
    vars: Vec<CString>,
    /// Where the variables with this name are; the same name can be there twice.
    by_name: HashMap<Vec<u8>, Vec<usize>>,
}

/// The variables of one child. Valid as long as base, changes and mark are.
pub(super) struct ChildEnv {
    /// Ends with a null pointer.
    pub(super) pointers: Vec<*const c_char>,
}

fn name(var: &[u8]) -> &[u8] {
    // A name can begin with `=`, as the C library sees it.
    let length =
        memchr::memchr(b'=', var.get(1..).unwrap_or_default()).map_or(var.len(), |at| at + 1);
    &var[..length]
}

impl BaseEnv {
    /// As this process was given it. Not by the standard library, which leaves out what it does not understand.
    pub(super) fn of_this_process() -> Self {
        unsafe extern "C" {
            static environ: *const *const c_char;
        }
        let mut vars = Vec::new();
        // SAFETY: one thread, and nothing has changed the environment: a list of strings that ends with null.
        unsafe {
            let mut at = environ;
            while !at.is_null() && !(*at).is_null() {
                vars.push(CStr::from_ptr(*at).to_owned());
                at = at.add(1);
            }
        }
        Self::new(vars)
    }

    fn new(mut vars: Vec<CString>) -> Self {
        vars.retain(|var| {
            let name = name(var.to_bytes());
            ![ROLE, RUN, TOKEN].iter().any(|own| own.as_bytes() == name)
        });
        let mut by_name: HashMap<Vec<u8>, Vec<usize>> = HashMap::new();
        for (at, var) in vars.iter().enumerate() {
            by_name.entry(name(var.to_bytes()).to_vec()).or_default().push(at);
        }
        Self { vars, by_name }
    }

    /// With the changes of a spawn, and its mark.
    pub(super) fn with(&self, set: &[&CStr], remove: &[&CStr], mark: &CStr) -> ChildEnv {
        let mut kept = vec![true; self.vars.len()];
        let changed = set.iter().map(|var| name(var.to_bytes()));
        for name in changed.chain(remove.iter().map(|name| name.to_bytes())) {
            for &at in self.by_name.get(name).into_iter().flatten() {
                kept[at] = false;
            }
        }
        let base =
            self.vars.iter().zip(kept).filter(|(_, kept)| *kept).map(|(var, _)| var.as_ptr());
        let own = std::iter::once(mark.as_ptr());
        let pointers = own
            .chain(base)
            .chain(set.iter().map(|var| var.as_ptr()))
            .chain(std::iter::once(std::ptr::null()))
            .collect();
        ChildEnv { pointers }
    }

    /// What the program is looked for in, after the changes.
    pub(super) fn path<'a>(&'a self, set: &[&'a CStr], remove: &[&CStr]) -> &'a [u8] {
        const PATH: &[u8] = b"PATH";
        let value = |var: &'a CStr| var.to_bytes().get(PATH.len() + 1..).unwrap_or_default();
        if let Some(var) = set.iter().rev().find(|var| name(var.to_bytes()) == PATH) {
            return value(var);
        }
        let base = self.by_name.get(PATH).and_then(|at| at.first());
        match base {
            Some(&at) if remove.iter().all(|name| name.to_bytes() != PATH) => value(&self.vars[at]),
            // As the shell has it where there is none.
            _ => b"/usr/local/bin:/bin:/usr/bin",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(env: &ChildEnv) -> Vec<&str> {
        let vars = &env.pointers[..env.pointers.len() - 1];
        // SAFETY: the strings that the test made are alive.
        vars.iter().map(|&var| unsafe { CStr::from_ptr(var) }.to_str().unwrap()).collect()
    }

    #[test]
    fn changes_replace_and_remove_by_name() {
        let vars =
            [c"A=1", c"odd", c"B=2", c"A=3", c"=C:=x", c"BGRP_ROLE=guardian", c"AB=4", c"PATH=/x"];
        let base = BaseEnv::new(vars.map(CStr::to_owned).to_vec());
        let plain = base.with(&[], &[], c"T=1");
        assert_eq!(shown(&plain), ["T=1", "A=1", "odd", "B=2", "A=3", "=C:=x", "AB=4", "PATH=/x"]);
        let changed = base.with(&[c"A=9=9", c"N="], &[c"B", c"none"], c"T=1");
        assert_eq!(shown(&changed), ["T=1", "odd", "=C:=x", "AB=4", "PATH=/x", "A=9=9", "N="]);
        assert_eq!(base.path(&[], &[]), b"/x");
        assert_eq!(base.path(&[c"PATH=/y:"], &[]), b"/y:");
        assert!(base.path(&[], &[c"PATH"]).starts_with(b"/usr/local/bin:"));
    }
}
