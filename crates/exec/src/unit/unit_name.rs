//! The parts of a unit's name (systemd.unit(5), "Description").

use std::fmt::{self, Display, Formatter};

/// `prefix.suffix`, or `prefix@instance.suffix`. The instance of a template is empty.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UnitName<'a> {
    prefix: &'a str,
    instance: Option<&'a str>,
    /// The type of the unit.
    pub(crate) suffix: &'a str,
}

impl<'a> UnitName<'a> {
    pub(crate) fn parse(name: &'a str) -> Self {
        let (stem, suffix) = name.rsplit_once('.').unwrap_or((name, ""));
        Self {
            prefix: stem.split('@').next().unwrap_or_default(),
            instance: stem.split_once('@').map(|(_, instance)| instance),
            suffix,
        }
    }

    /// The template of an instance: `redis@.service` for `redis@a.service`.
    pub(crate) fn template(self) -> Option<Self> {
        self.nonempty_instance().map(|_| Self {
            instance: Some(""),
            ..self
        })
    }

    /// A template with the instance of another name: `redis@a.service` for `redis@.service` and `any@a.service`. Other names
    /// stay as they are.
    pub(crate) fn with_instance_of(self, other: Self) -> Self {
        match (self.instance, other.instance) {
            (Some(""), Some(instance)) => Self {
                instance: Some(instance),
                ..self
            },
            _ => self,
        }
    }

    /// The names by which the unit has drop-ins, in systemd's order: for `a-b@c` these are `a-b@c`, `a-b@`, `a-`, `a-@c` and
    /// `a-@`. Specific names come first, except that `a-` comes before `a-@c`.
    pub(crate) fn drop_in_names(self) -> Vec<String> {
        let mut names = vec![self.to_string()];
        for wider in [self.template(), self.shortened()].into_iter().flatten() {
            names.extend(wider.drop_in_names());
        }
        names
    }

    /// The name up to its last dash: `a-@c` for `a-b@c`, and `a-` for `a-b` and for the template `a-b@`.
    fn shortened(self) -> Option<Self> {
        let prefix = self.prefix.strip_suffix('-').unwrap_or(self.prefix);
        let dash = prefix.rfind('-').filter(|dash| *dash > 0)?;
        Some(Self {
            prefix: &prefix[..=dash],
            instance: self.nonempty_instance(),
            ..self
        })
    }

    fn nonempty_instance(self) -> Option<&'a str> {
        self.instance.filter(|instance| !instance.is_empty())
    }
}

impl Display for UnitName<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.prefix)?;
        if let Some(instance) = self.instance {
            write!(f, "@{instance}")?;
        }
        write!(f, ".{}", self.suffix)
    }
}
