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

    /// `redis@.service` for `redis@a.service`.
    pub(crate) fn template(self) -> Option<Self> {
        self.instance_name().map(|_| Self {
            instance: Some(""),
            ..self
        })
    }

    /// `redis@a.service` for the template `redis@.service` and any instance `a`; another name as it is.
    pub(crate) fn with_instance_of(self, other: Self) -> Self {
        match (self.instance, other.instance) {
            (Some(""), Some(instance)) => Self {
                instance: Some(instance),
                ..self
            },
            _ => self,
        }
    }

    /// The names by which the unit has drop-ins, the most specific one first: `a-b@c`, `a-b@`, `a-`, `a-@c`, `a-@`. That the
    /// third comes before the fourth is systemd's order, too.
    pub(crate) fn names_of_drop_ins(self) -> Vec<String> {
        let mut names = vec![self.to_string()];
        for wider in [self.template(), self.shortened()].into_iter().flatten() {
            names.extend(wider.names_of_drop_ins());
        }
        names
    }

    /// The name up to a dash: `a-@c` for `a-b@c`, and `a-` for `a-b` and for the template `a-b@`.
    fn shortened(self) -> Option<Self> {
        let prefix = self.prefix.strip_suffix('-').unwrap_or(self.prefix);
        let dash = prefix.rfind('-').filter(|dash| *dash > 0)?;
        Some(Self {
            prefix: &prefix[..=dash],
            instance: self.instance_name(),
            ..self
        })
    }

    fn instance_name(self) -> Option<&'a str> {
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
