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

/// The type of a vendor's TLV: its name, and how its value is read and given on the command line.
struct VendorKind {
    kind: u8,
    name: &'static str,
    decode: for<'a> fn(&'a [u8]) -> Option<Vendor<'a>>,
    #[cfg(feature = "std")]
    encode: fn(&str) -> Result<Vec<u8>, &'static str>,
}

/// All known vendors, in the order in which help texts list them.
const VENDORS: [VendorKind; 3] = [
    VendorKind {
        kind: kind::AWS,
        name: "AWS_VPCE_ID",
        decode: decode_aws,
        #[cfg(feature = "std")]
        encode: encode_aws,
    },
    VendorKind {
        kind: kind::AZURE,
        name: "AZURE_LINKID",
        decode: decode_azure,
        #[cfg(feature = "std")]
        encode: encode_azure,
    },
    VendorKind {
        kind: kind::GCP,
        name: "GCP_PSC_ID",
        decode: decode_gcp,
        #[cfg(feature = "std")]
        encode: encode_gcp,
    },
];

impl<'a> Vendor<'a> {
    /// Decodes a TLV; `None` if no vendor has its type, or its value does not have the vendor's form.
    pub fn read(tlv: Tlv<'a>) -> Option<Self> {
        let vendor = VENDORS.iter().find(|vendor| vendor.kind == tlv.kind)?;
        (vendor.decode)(tlv.value)
    }

    /// The type of the vendor's TLV of this name, compared as by [`kind::from_name`].
    pub fn kind_from_name(name: &str) -> Option<u8> {
        VENDORS
            .iter()
            .find(|vendor| kind::is_same_name(vendor.name, name))
            .map(|vendor| vendor.kind)
    }

    /// The names of vendors' TLVs as an option's value has them: `aws-vpce-id`.
    #[cfg(feature = "std")]
    pub fn option_names() -> Vec<String> {
        VENDORS
            .map(|vendor| vendor.name.to_ascii_lowercase().replace('_', "-"))
            .into()
    }

    /// Encodes the value of a TLV of this type that is given in the vendor's notation.
    ///
    /// # Errors
    ///
    /// The reason why no balancer of the vendor sends this value.
    #[cfg(feature = "std")]
    pub fn encode(kind: u8, text: &str) -> Result<Vec<u8>, &'static str> {
        let vendor = VENDORS.iter().find(|vendor| vendor.kind == kind);
        (vendor.ok_or("no vendor has this type")?.encode)(text)
    }
}

impl Tlv<'_> {
    /// The name of the vendor's TLV if the value has that vendor's form; else that of the type in the specification, without
    /// its `PP2_TYPE_`, or of the type's range, such as `CUSTOM` or `UNASSIGNED`.
    pub fn name(self) -> &'static str {
        VENDORS
            .iter()
            .find(|vendor| vendor.kind == self.kind && (vendor.decode)(self.value).is_some())
            .map_or_else(|| kind::name(self.kind), |vendor| vendor.name)
    }
}

fn decode_aws(value: &[u8]) -> Option<Vendor<'_>> {
    let id = value.strip_prefix(&[AWS_VPCE_ID])?;
    let suffix = id.strip_prefix(b"vpce-")?;
    let is_plain = suffix
        .iter()
        .all(|byte| byte.is_ascii_alphanumeric() || *byte == b'-');
    let id = core::str::from_utf8(id).ok().filter(|_| is_plain)?;
    Some(Vendor::AwsVpcEndpoint(id))
}

#[cfg(feature = "std")]
fn encode_aws(id: &str) -> Result<Vec<u8>, &'static str> {
    let value = [&[AWS_VPCE_ID][..], id.as_bytes()].concat();
    decode_aws(&value)
        .ok_or("the id of a VPC endpoint is vpce- and letters, digits and hyphens")?;
    Ok(value)
}

/// The number is little endian, unlike everything else in a header.
fn decode_azure(value: &[u8]) -> Option<Vendor<'_>> {
    let id = value.strip_prefix(&[AZURE_LINKID])?;
    let id = id.try_into().ok().map(u32::from_le_bytes)?;
    Some(Vendor::AzureLinkId(id))
}

#[cfg(feature = "std")]
fn encode_azure(id: &str) -> Result<Vec<u8>, &'static str> {
    let id: u32 = id.parse().map_err(|_| NO_NUMBER)?;
    Ok([&[AZURE_LINKID][..], &id.to_le_bytes()].concat())
}

fn decode_gcp(value: &[u8]) -> Option<Vendor<'_>> {
    let id = value.try_into().ok().map(u64::from_be_bytes)?;
    Some(Vendor::GcpPscConnection(id))
}

#[cfg(feature = "std")]
fn encode_gcp(id: &str) -> Result<Vec<u8>, &'static str> {
    let id: u64 = id.parse().map_err(|_| NO_NUMBER)?;
    Ok(id.to_be_bytes().to_vec())
}

#[cfg(feature = "std")]
const NO_NUMBER: &str = "the id is a decimal number";
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
        assert_eq!(Vendor::option_names(), tlvs.map(|(_, _, name, _)| name));
        for (kind, value, name, text) in tlvs {
            assert_eq!(Vendor::encode(kind, text), Ok(value.to_vec()));
            assert_eq!(Vendor::kind_from_name(name), Some(kind));
            let shown = Tlv { kind, value }.name();
            assert_eq!(Vendor::kind_from_name(shown), Some(kind));
        }
    }

    #[test]
    fn page_of_required_tlvs_lists_every_vendor() {
        for name in Vendor::option_names() {
            let row = format!("\n| `{name}` | ");
            assert!(
                include_str!("../../../../docs/bans.md").contains(&row),
                "{name}"
            );
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
