//! TLVs of cloud load balancers, in the range for applications (E0 to EF).
//!
//! Any sender may use these types for other purposes, so a value that no vendor sends is not an error.

use super::block::Tlv;
use super::kind;

/// A TLV of a known vendor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Vendor<'a> {
    /// AWS network load balancer: the VPC endpoint the connection came through, `vpce-08d2bf15fac5001c9`.
    AwsVpcEndpoint(&'a str),
    /// Azure Private Link: LINKID, the private endpoint's number.
    AzureLinkId(u32),
    /// Google Private Service Connect: `pscConnectionId`.
    GcpPscConnection(u64),
}

impl<'a> Vendor<'a> {
    /// Decodes a TLV; `None` if no vendor has its type, or its value does not have the vendor's form.
    pub fn read(tlv: Tlv<'a>) -> Option<Self> {
        match tlv.kind {
            kind::AWS => aws(tlv.value).map(Self::AwsVpcEndpoint),
            kind::AZURE => azure(tlv.value).map(Self::AzureLinkId),
            kind::GCP => tlv
                .value
                .try_into()
                .ok()
                .map(u64::from_be_bytes)
                .map(Self::GcpPscConnection),
            _ => None,
        }
    }

    /// Encodes the value of a TLV of this type that is given in the vendor's notation.
    ///
    /// # Errors
    ///
    /// The reason why no balancer of the vendor sends this value.
    #[cfg(feature = "std")]
    pub fn encode(kind: u8, text: &str) -> Result<Vec<u8>, &'static str> {
        let no_number = "the id is a decimal number";
        match kind {
            kind::AWS => {
                let value = [&[AWS_VPCE_ID][..], text.as_bytes()].concat();
                aws(&value)
                    .ok_or("the id of a VPC endpoint is vpce- and letters, digits and hyphens")?;
                Ok(value)
            }
            kind::AZURE => {
                let id: u32 = text.parse().map_err(|_| no_number)?;
                Ok([&[AZURE_LINKID][..], &id.to_le_bytes()].concat())
            }
            kind::GCP => {
                let id: u64 = text.parse().map_err(|_| no_number)?;
                Ok(id.to_be_bytes().to_vec())
            }
            _ => Err("no vendor has this type"),
        }
    }
}

impl Tlv<'_> {
    /// The name of the vendor's TLV if the value has that vendor's form; else that of the type in the specification, without
    /// its `PP2_TYPE_`, or of the type's range, such as `CUSTOM` or `UNASSIGNED`.
    pub fn name(self) -> &'static str {
        Vendor::read(self)
            .and_then(|_| kind::vendor_name(self.kind))
            .unwrap_or_else(|| kind::name(self.kind))
    }
}

fn aws(value: &[u8]) -> Option<&str> {
    let id = value.strip_prefix(&[AWS_VPCE_ID])?;
    let suffix = id.strip_prefix(b"vpce-")?;
    let is_plain = suffix
        .iter()
        .all(|byte| byte.is_ascii_alphanumeric() || *byte == b'-');
    core::str::from_utf8(id).ok().filter(|_| is_plain)
}

/// The number is little endian, unlike everything else in a header.
fn azure(value: &[u8]) -> Option<u32> {
    let id = value.strip_prefix(&[AZURE_LINKID])?;
    id.try_into().ok().map(u32::from_le_bytes)
}

/// `PP2_SUBTYPE_AWS_VPCE_ID`: the first byte of the value.
const AWS_VPCE_ID: u8 = 0x01;
/// `PP2_SUBTYPE_AZURE_PRIVATEENDPOINT_LINKID`: the first byte of the value.
const AZURE_LINKID: u8 = 0x01;

#[cfg(test)]
mod tests {
    use super::*;

    fn read(kind: u8, value: &[u8]) -> Option<Vendor<'_>> {
        Vendor::read(Tlv { kind, value })
    }

    #[test]
    fn known_vendor_tlvs_are_decoded() {
        let aws = b"\x01vpce-08d2bf15fac5001c9";
        assert_eq!(
            read(0xea, aws),
            Some(Vendor::AwsVpcEndpoint("vpce-08d2bf15fac5001c9"))
        );
        assert_eq!(
            read(0xee, &[1, 4, 3, 2, 1]),
            Some(Vendor::AzureLinkId(0x0102_0304))
        );
        let gcp = [0, 0xab, 0x34, 0xd7, 0x0a, 0, 0x3c, 0x64];
        assert_eq!(
            read(0xe0, &gcp),
            Some(Vendor::GcpPscConnection(0x00ab_34d7_0a00_3c64))
        );
        let tlvs: [(u8, &[u8], &str, &str); 3] = [
            (0xea, aws, "aws-vpce-id", "vpce-08d2bf15fac5001c9"),
            (0xee, &[1, 4, 3, 2, 1], "azure-linkid", "16909060"),
            (0xe0, &gcp, "gcp-psc-id", "48190319207922788"),
        ];
        assert_eq!(
            kind::vendor_option_names(),
            tlvs.map(|(_, _, name, _)| name)
        );
        for (kind, value, name, text) in tlvs {
            assert_eq!(Vendor::encode(kind, text), Ok(value.to_vec()));
            assert_eq!(kind::from_vendor_name(name), Some(kind));
            let shown = Tlv { kind, value }.name();
            assert_eq!(kind::from_vendor_name(shown), Some(kind));
        }
    }

    #[test]
    fn values_of_another_form_are_ignored() {
        for value in [
            &b""[..],
            b"\x02vpce-1",
            b"\x01vpc-1",
            b"\x01vpce-\xff",
            b"\x01vpce-!",
        ] {
            assert_eq!(read(0xea, value), None);
        }
        for value in [&b""[..], &[1], &[2, 0, 0, 0, 0], &[1, 0, 0, 0, 0, 0]] {
            assert_eq!(read(0xee, value), None);
        }
        assert_eq!(read(0xe0, &[0; 7]), None);
        assert_eq!(read(0xe1, &[0; 8]), None);
        assert_eq!(
            Tlv {
                kind: 0xea,
                value: b""
            }
            .name(),
            "CUSTOM"
        );
    }
}
